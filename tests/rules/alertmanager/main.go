// Loads receivers as a current Alertmanager does, and prints the card that its Teams receiver posts for an alert.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/alertmanager/alert"
	"github.com/prometheus/alertmanager/config"
	"github.com/prometheus/alertmanager/notify"
	"github.com/prometheus/alertmanager/notify/msteamsv2"
	"github.com/prometheus/alertmanager/template"
	"github.com/prometheus/common/model"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string) error {
	loaded, err := config.LoadFile(path)
	if err != nil {
		return err
	}
	texts, err := template.FromGlobs(loaded.Templates)
	if err != nil {
		return err
	}
	texts.ExternalURL, _ = url.Parse("http://alertmanager.example.com")
	teams := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(string(body))
	}))
	defer teams.Close()
	where := filepath.Join(os.TempDir(), fmt.Sprintf("teams-url-%d", os.Getpid()))
	if err := os.WriteFile(where, []byte(teams.URL), 0o600); err != nil {
		return err
	}
	defer os.Remove(where)
	fired := alert.New(model.Alert{
		Labels: model.LabelSet{"alertname": "KVPressureCacheTooSmall", "severity": "critical"},
		Annotations: model.LabelSet{
			"summary":     "llama in chat: KV cache too small",
			"description": "2 of 3 replicas hurt.\nRun: kubectl kvpressure triage -n chat pod/vllm-0",
		},
	}, time.Now(), false)
	for _, receiver := range loaded.Receivers {
		for _, own := range receiver.MSTeamsV2Configs {
			own.WebhookURLFile = where
			notifier, err := msteamsv2.New(own, texts, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			ctx := notify.WithGroupKey(context.Background(), "key")
			if err := notifier.Notify(ctx, fired).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}
