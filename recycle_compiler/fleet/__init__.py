"""Jobs on machines that fail and return, under different fault-tolerance policies.

policy, policies/   what a policy answers; ours, and the baselines
setting, our_plans  what policies know: the job, costs of changes, periods of our plans
traces/, machines   when machines fail and return, and which workers that concerns
course, comparison  one policy led through a trace; several of them
report, page        what was found, as text, JSON and HTML
"""
