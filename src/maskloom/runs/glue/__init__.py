"""GLUE from its files to a table of scores and a submission (Wang et al. 2018; BERT paper, 4.1)."""

from maskloom.runs.glue.check import check_submission
from maskloom.runs.glue.run import glue_run
from maskloom.runs.glue.submit import submit_glue

__all__ = ["check_submission", "glue_run", "submit_glue"]
