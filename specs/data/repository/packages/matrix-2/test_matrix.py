import unittest

from matrix import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(trace([[1, 7], [2, 3]]), 4)
