package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// addressFile is where a scheduler leaves its URLs, next to its cluster's kubeconfig.
const addressFile = "scheduler.url"

// schedulerAnswersWithin bounds how long the scheduler may take to answer; the explanation works
// without it.
const schedulerAnswersWithin = 5 * time.Second

// decided asks the live scheduler for its last decision about the pod. It returns nil if there is
// no scheduler to ask, or it does not know the pod. A failure is printed, and is no error: the
// engine's verdict needs no scheduler.
func (e *explanation) decided(cmd *cobra.Command, namespace, name string) *decision.Decision {
	where := e.schedulerURL
	if where == "" && len(e.files) == 0 {
		where = e.addressBesideKubeconfig()
	}
	if where == "" || e.unanswered {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), schedulerAnswersWithin)
	defer cancel()
	d, err := e.askScheduler(ctx, where, namespace, name)
	if err != nil {
		e.unanswered = true
		tell(e.notices(cmd), "not asked: the scheduler: %v", err)
	}
	return d
}

// addressBesideKubeconfig is the URL that the scheduler of berth up has left in the data directory;
// over plain HTTP, if it serves that.
func (e *explanation) addressBesideKubeconfig() string {
	dir := connect.DataDirFromEnv()
	if file := e.connection.to.Kubeconfig; file != "" {
		dir = filepath.Dir(file)
	} else if file := os.Getenv("KUBECONFIG"); file != "" {
		dir = filepath.Dir(filepath.SplitList(file)[0])
	}
	text, err := os.ReadFile(filepath.Join(dir, addressFile))
	if err != nil {
		return ""
	}
	for _, line := range strings.Fields(string(text)) {
		if strings.HasPrefix(line, "http://") {
			return line
		}
	}
	return ""
}

func (e *explanation) askScheduler(ctx context.Context, where, namespace, name string) (*decision.Decision, error) {
	client, err := e.schedulerClient(where)
	if err != nil {
		return nil, err
	}
	at, err := url.JoinPath(where, decision.Path, namespace, name)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	const longest = 4 << 20
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusNotFound && strings.HasPrefix(string(text), "pod "):
		return nil, nil // it knows nothing of the pod
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %s", at, response.Status, strings.TrimSpace(firstLine(string(text))))
	}
	d := &decision.Decision{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if d.Kind != decision.Kind {
		return nil, fmt.Errorf("%s: is no %s", at, decision.Kind)
	}
	return d, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// schedulerClient sends the kubeconfig's credentials only to a scheduler whose certificate the
// cluster's CA has signed.
func (e *explanation) schedulerClient(where string) (*http.Client, error) {
	to, err := url.Parse(where)
	if err != nil {
		return nil, err
	}
	switch to.Scheme {
	case "http":
		return &http.Client{}, nil
	case "https":
		config, err := e.connection.config(e.userAgent)
		if err != nil {
			return nil, err
		}
		if config.Insecure {
			return nil, errors.New("the kubeconfig does not verify servers (insecure-skip-tls-verify), so no credentials are sent to " + where)
		}
		return rest.HTTPClientFor(config)
	}
	return nil, usagef("--scheduler-url %q: must begin with http:// or https://", where)
}
