import unittest

from words import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(slug('Two Towns'), 'two-towns')
