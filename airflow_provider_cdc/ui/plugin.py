"""The Airflow plugin of the page: its application, its entry in the navigation, and its tabs.

Airflow loads the plugin in every process, including tasks, so the application is created only when it is requested.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

#: Path of the application. Addresses of views are relative because the API server may be below a path.
URL_PREFIX = "/cdc"
_HREF = "cdc/?dag_id={DAG_ID}"
#: Address of the page in each kind of tab.
_TABS = {
    "dag": _HREF,
    "dag_run": _HREF + "&run_id={RUN_ID}",
    "task_instance": _HREF + "&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}",
}
_ICONS = {"icon": "cdc/static/icon.svg", "icon_dark_mode": "cdc/static/icon-dark.svg"}


class CdcPlugin(AirflowPlugin):
    """The plugin of the page."""

    name = "cdc"
    external_views = [  # noqa: RUF012 (Airflow's own form)
        {"name": "CDC pipelines", "href": "cdc/", "destination": "nav", "url_route": "cdc", "category": "browse"},
        *(
            {"name": "CDC", "href": href, "destination": place, "url_route": f"cdc_{place}", **_ICONS}
            for place, href in _TABS.items()
        ),
    ]

    @cached_property
    def operator_extra_links(self) -> list[Any]:  # type: ignore[override]
        """The link from each task to its pipeline. Its module is imported only here."""
        from airflow_provider_cdc.airflow.links.cdc import CdcPageLink

        return [CdcPageLink()]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The application. FastAPI is imported only here."""
        from airflow_provider_cdc.ui.app import make_app

        return [{"app": make_app(), "url_prefix": URL_PREFIX, "name": "CDC pipelines"}]
