"""Dagster's log for a person at a terminal: the stages' own sentences, without run ids."""

import logging
import sys

import dagster as dg

from dflash_pipeline.stages.terminal import show_bars

FRAMEWORK = ("[pipes] external", "Execution of step ", "Execution of run ")
"""Sentences of Dagster's that say less than ours: a failure is told once, by the command."""

CLEAR_LINE = "\r\x1b[K"
"""A progress bar leaves the cursor at its end; what is printed next takes its line, and the bar is drawn anew below."""


@dg.logger(config_schema={"log_level": dg.Field(str, is_required=False, default_value="INFO")})
def terminal_log(context: dg.InitLoggerContext) -> logging.Logger:
    """One plain line a message, on standard error."""
    logger = logging.Logger("terminal", level=context.logger_config["log_level"])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    handler.addFilter(lambda record: not _text(record).startswith(FRAMEWORK))
    logger.addHandler(handler)
    return logger


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = _text(record) if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {_text(record)}"
        return f"{CLEAR_LINE}{text}" if show_bars() else text


def _text(record: logging.LogRecord) -> str:
    return getattr(record, "dagster_meta", {}).get("orig_message") or record.getMessage()
