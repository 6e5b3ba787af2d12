"""`recyclec play`: a page with the numbers of a job as sliders, and its plan drawn as they move."""
