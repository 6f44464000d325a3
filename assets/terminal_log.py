"""Dagster's log for a person at a terminal: the stages' own sentences, without run ids."""

import logging
import sys

import dagster as dg


@dg.logger(config_schema={"log_level": dg.Field(str, is_required=False, default_value="INFO")})
def terminal_log(context: dg.InitLoggerContext) -> logging.Logger:
    """One plain line a message, on standard error."""
    logger = logging.Logger("terminal", level=context.logger_config["log_level"])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    logger.addHandler(handler)
    return logger


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = getattr(record, "dagster_meta", {}).get("orig_message") or record.getMessage()
        return message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"
