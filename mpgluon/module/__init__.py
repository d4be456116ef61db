"""Modules: symbols with parameters, devices and an optimizer, trained by `fit` or step by step."""

from .base_module import BaseModule
from .bucketing_module import BucketingModule
from .module import Module

__all__ = ["BaseModule", "BucketingModule", "Module"]
