"""Click models: rows of ids → logits, one architecture a file; they share only `embedded`."""

from click_models.dcn import dcn as dcn
from click_models.dcn_mix import dcn_mix as dcn_mix
from click_models.deepfm import deepfm as deepfm
from click_models.dlrm import dlrm as dlrm
from click_models.embedded import ModelOptions as ModelOptions
from click_models.fnn import fnn as fnn
from click_models.xdeepfm import xdeepfm as xdeepfm

ARCHITECTURES = {
    "fnn": fnn,
    "deepfm": deepfm,
    "xdeepfm": xdeepfm,
    "dcn": dcn,
    "dcn_mix": dcn_mix,
    "dlrm": dlrm,
}
