"""GLUE from data files to a table of scores and a submission (Wang et al. 2018; BERT paper, 4.1)."""
