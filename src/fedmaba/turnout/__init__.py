"""Who is there in a round, who answers in time, and what is sent: functions of the seed. No torch.

Nothing here knows a strategy, so all strategies of one seed meet the same clients.
"""
