import unittest

from calendar_days import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(is_leap(2000), True)
