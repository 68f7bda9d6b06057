import unittest

from spans import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(merged([(1, 9), (2, 4)]), [(1, 9)])
