"""Official scores; scikit-learn and scipy do the arithmetic."""

from maskloom.metrics.labels import MultiLabelMetric, RegressionMetric, SingleLabelMetric
from maskloom.metrics.metric import Metric

__all__ = ["Metric", "MultiLabelMetric", "RegressionMetric", "SingleLabelMetric"]
