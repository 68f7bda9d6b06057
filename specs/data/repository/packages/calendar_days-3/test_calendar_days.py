import unittest

from calendar_days import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(ordinal(2023, 1, 5), 5)
