import pytest

from widthwise.config_io import UserError
from widthwise.data.extras import require


def test_missing_extra_is_named():
    with pytest.raises(UserError, match=r"pip install 'widthwise\[prep\]'"):
        require("no_such_module_anywhere", "prep")
