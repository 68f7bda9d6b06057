import unittest

from roman import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(to_roman(19), 'XIX')
