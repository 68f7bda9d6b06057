import unittest

from roman import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(from_roman('xii'), 12)
