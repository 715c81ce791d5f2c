// Checks manifests against the types of prometheus-operator: no field that it does not know, matchers that it accepts.
package main

import (
	"bytes"
	"fmt"
	"os"

	v1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	"sigs.k8s.io/yaml"
)

func check(text []byte) (string, error) {
	var head struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(text, &head); err != nil {
		return "", err
	}
	switch head.APIVersion + "/" + head.Kind {
	case "monitoring.coreos.com/v1/PrometheusRule":
		return head.Kind, yaml.UnmarshalStrict(text, &v1.PrometheusRule{})
	case "monitoring.coreos.com/v1/PodMonitor":
		return head.Kind, yaml.UnmarshalStrict(text, &v1.PodMonitor{})
	case "monitoring.coreos.com/v1/ServiceMonitor":
		return head.Kind, yaml.UnmarshalStrict(text, &v1.ServiceMonitor{})
	case "monitoring.coreos.com/v1alpha1/AlertmanagerConfig":
		config := v1alpha1.AlertmanagerConfig{}
		if err := yaml.UnmarshalStrict(text, &config); err != nil {
			return head.Kind, err
		}
		for _, rule := range config.Spec.InhibitRules {
			for _, matcher := range append(rule.SourceMatch, rule.TargetMatch...) {
				if err := matcher.Validate(); err != nil {
					return head.Kind, err
				}
			}
		}
		return head.Kind, nil
	}
	return "", nil
}

func main() {
	bad, seen := 0, map[string]int{}
	for _, name := range os.Args[1:] {
		content, err := os.ReadFile(name)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for _, text := range bytes.Split(content, []byte("\n---\n")) {
			kind, err := check(text)
			if err != nil {
				fmt.Println(name, kind, err)
				bad++
			} else if kind != "" {
				seen[kind]++
			}
		}
	}
	fmt.Println(seen, "as prometheus-operator knows them,", bad, "problems")
	if bad > 0 || len(seen) == 0 {
		os.Exit(1)
	}
}
