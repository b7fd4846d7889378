"""What to watch a cluster with: dashboards for Grafana, and rules for Prometheus.

prometheus.yml, alerts.yml       to scrape and to be woken by; alerts_test.yml proves each rule
dashboards/*.json                what the modules here say, as Grafana takes it
provisioning/                    so that Grafana finds data source and dashboards by itself
pictures/*.png                   what the dashboards look like

``quire monitoring DIR`` writes all of it to a folder, for one cluster. ``python -m grafana``
writes dashboards/ anew after a change of bookies.py, topics.py, cluster.py or jobs.py.
"""
