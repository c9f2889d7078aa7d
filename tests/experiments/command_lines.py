"""Command lines, one after the other, in each of several processes; run by test_workers.py.

command_lines.py COMMANDS    a list of lists of arguments, as JSON; the first that fails ends the process with its code
"""

import json
import os
import sys

import torch

from widthwise.cli.main import main

if __name__ == "__main__":
    torch.set_num_threads(1)
    os.fsync = lambda handle: None
    for arguments in json.loads(sys.argv[1]):
        sys.argv = ["widthwise", *arguments]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
