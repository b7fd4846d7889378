"""Work of leaders and operators: repair, operations, housekeeping and metrics."""
