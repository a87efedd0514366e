"""Trained policies that anybody can use: what their folders contain, and how a name leads to one.

    locate("zoo:walker_stand-sac")      a folder in ./zoo, in $SOFTAUG_ZOO or in this package
    locate("hf:ORG/NAME")               downloaded from the Hugging Face Hub (extra `hub`)
    locate("runs/first")                any other path is that path

`softaug.results.publishing` makes such folders from runs. This package only reads: it may import `storage` and below,
and everything that accepts a run directory asks it where that is.
"""

from softaug.zoo.folder import PolicyFolder
from softaug.zoo.places import locate, names, outputs_of

__all__ = ["PolicyFolder", "locate", "names", "outputs_of"]
