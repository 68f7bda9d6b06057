import unittest

from words import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(wrap('an old map', 5), ['an', 'old', 'map'])
