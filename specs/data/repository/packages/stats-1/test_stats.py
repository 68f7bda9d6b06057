import unittest

from stats import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(median([5, 1, 3]), 3)
