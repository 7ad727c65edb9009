"""Labels that come late: how late (`LabelDelay`), and what rows count until then."""
