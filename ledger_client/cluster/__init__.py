"""Work of leaders and operators: repair, observation, operations."""
