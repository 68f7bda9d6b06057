import unittest

from spans import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(length([(1, 4), (3, 6)]), 6)
