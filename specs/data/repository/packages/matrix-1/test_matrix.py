import unittest

from matrix import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(product([[1, 2]], [[3], [4]]), [[11]])
