window.BENCHMARK_DATA = {
  "lastUpdate": 1795170000000,
  "repoUrl": "https://github.com/someone/something",
  "entries": {
    "Rust": [
      {
        "commit": {"id": "1111111111111111111111111111111111111111", "message": "one", "timestamp": "2026-11-18T09:00:00Z", "url": "https://github.com/someone/something/commit/1"},
        "date": 1794992400000,
        "tool": "cargo",
        "benches": [{"name": "sort/1000", "value": 1250, "range": "± 30", "unit": "ns/iter"}]
      },
      {
        "commit": {"id": "2222222222222222222222222222222222222222", "message": "two", "timestamp": "2026-11-19T09:00:00Z", "url": "https://github.com/someone/something/commit/2"},
        "date": 1795078800000,
        "tool": "cargo",
        "benches": [{"name": "sort/1000", "value": 1100, "range": "± 25", "unit": "ns/iter"}]
      }
    ],
    "Python": [
      {
        "commit": {"id": "2222222222222222222222222222222222222222", "message": "two", "timestamp": "2026-11-19T09:00:00Z", "url": "https://github.com/someone/something/commit/2"},
        "date": 1795078800000,
        "tool": "pytest",
        "benches": [{"name": "test_add", "value": 869.5, "unit": "iter/sec", "range": "stddev: 0.0002", "extra": "mean: 1.15 msec\nrounds: 3"}]
      }
    ]
  }
}
