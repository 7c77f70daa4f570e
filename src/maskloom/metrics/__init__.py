"""Official scores; scikit-learn and scipy do the arithmetic."""

from maskloom.metrics.metric import Metric
from maskloom.metrics.multi_label import MultiLabelMetric
from maskloom.metrics.regression import RegressionMetric
from maskloom.metrics.single_label import SingleLabelMetric

__all__ = ["Metric", "MultiLabelMetric", "RegressionMetric", "SingleLabelMetric"]
