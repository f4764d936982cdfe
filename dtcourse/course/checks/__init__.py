"""What is asked of each exercise: a folder for a lesson, a file for an exercise. How it is put to answers: ../judging/.

A file holds the Exercise, the steps that run with an answer in the ranks, and the checks that compare in the judge.
"""
