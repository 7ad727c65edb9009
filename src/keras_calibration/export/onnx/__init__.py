"""ONNX files: written by tf2onnx, run in onnxruntime, refreshed."""
