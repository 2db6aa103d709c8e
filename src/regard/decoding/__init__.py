"""Text from models: `from regard.decoding import fill_mask, generate, stream`."""

from regard.decoding.loop import Generated, generate, stream
from regard.decoding.masked import FilledMask, fill_mask
from regard.decoding.prompts import Encoded, encoded

__all__ = ["Encoded", "FilledMask", "Generated", "encoded", "fill_mask", "generate", "stream"]
