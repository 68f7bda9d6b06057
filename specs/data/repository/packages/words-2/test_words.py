import unittest

from words import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(initials('ada mary king'), 'AMK')
