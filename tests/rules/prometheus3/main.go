// Checks rule files as a Prometheus 3 reads them and as MetricsQL, which vmalert speaks; and Mimir's limit of rules in a group.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	bad := 0
	for _, name := range os.Args[1:] {
		groups, errs := rulefmt.ParseFile(name, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
		for _, err := range errs {
			fmt.Println(name, err)
			bad++
		}
		if groups != nil {
			for _, g := range groups.Groups {
				if len(g.Rules) > 20 {
					fmt.Println(name, g.Name, len(g.Rules), "rules")
					bad++
				}
				for _, r := range g.Rules {
					if _, err := metricsql.Parse(r.Expr); err != nil {
						fmt.Println(name, r.Alert+r.Record, "as MetricsQL:", err)
						bad++
					}
				}
			}
		}
	}
	fmt.Println(len(os.Args)-1, "files,", bad, "problems")
	if bad > 0 {
		os.Exit(1)
	}
}
