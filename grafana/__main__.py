"""``python -m grafana``: regenerate dashboards/ from the modules here."""

from grafana.pages import write_all

if __name__ == "__main__":
    write_all()
