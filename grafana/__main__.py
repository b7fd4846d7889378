"""``python -m grafana``: write dashboards/ anew from what the modules here say."""

from grafana.pages import write_all

if __name__ == "__main__":
    write_all()
