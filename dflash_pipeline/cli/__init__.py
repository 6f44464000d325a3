"""The program `dflash`: one module a family of commands."""

from dflash_pipeline.cli.app import main

__all__ = ["main"]
