import unittest

from stats import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(median([1, 2, 3, 10]), 2.5)
