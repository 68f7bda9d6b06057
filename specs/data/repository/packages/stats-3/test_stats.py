import unittest

from stats import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(mode([2, 1, 2, 1]), 1)
