import unittest

from matrix import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(power([[1, 1], [0, 1]], 3), [[1, 3], [0, 1]])
