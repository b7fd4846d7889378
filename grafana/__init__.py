"""Monitoring of a cluster: dashboards for Grafana, and alert rules for Prometheus.

prometheus.yml, alerts.yml       scrape configuration and alert rules; alerts_test.yml tests each
dashboards/*.json                the dashboards, generated from the modules here
provisioning/                    points Grafana to its data source and dashboards
pictures/*.png                   screenshots of the dashboards

``quire monitoring DIR`` writes all of it to a folder, for one cluster. ``python -m grafana``
regenerates dashboards/ after a change to bookies.py, topics.py, cluster.py or jobs.py.
"""
