// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/usage"
)

// AddressFile is the file in which a scheduler publishes its URLs, next to its cluster's
// kubeconfig.
const AddressFile = "scheduler.url"

// schedulerAnswersWithin bounds the time until the scheduler responds.
const schedulerAnswersWithin = 5 * time.Second

// Scheduler locates and queries a scheduler.
type Scheduler struct {
	URL       string // URL set by the flag
	Cluster   *connect.Flags
	UserAgent string
}

// find returns the scheduler's URL, from the flag or from the data directory, where the scheduler
// of berth up publishes it; "" if neither exists. It looks the URL up every time, because the
// scheduler may have been restarted.
func (s *Scheduler) find() (string, error) {
	if s.URL != "" {
		return s.URL, nil
	}
	dir, files := connect.DataDirFromEnv(), filepath.SplitList(os.Getenv("KUBECONFIG"))
	if file := s.Cluster.Kubeconfig; file != "" {
		dir = filepath.Dir(file)
	} else if i := slices.IndexFunc(files, func(file string) bool { return file != "" }); i >= 0 {
		dir = filepath.Dir(files[i])
	}
	return connect.FoundURL(filepath.Join(dir, AddressFile))
}

// Decision requests the last decision about a pod. It returns nil without a scheduler, or if the
// pod is unknown to it.
func (s *Scheduler) Decision(ctx context.Context, namespace, name string) (*decision.Decision, error) {
	text, at, err := s.get(ctx, decision.Path, namespace, name)
	if text == nil || err != nil {
		return nil, err
	}
	d := &decision.Decision{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if d.Kind != decision.Kind {
		return nil, fmt.Errorf("%s: not a %s", at, decision.Kind)
	}
	return d, nil
}

// InUse requests the scheduler's configuration in use. It returns nil without a scheduler, or if
// the scheduler's version does not report its configuration. It also returns nil if a scheduler
// that was found, rather than named by the flag, belongs to a different cluster than the selected
// one.
func (s *Scheduler) InUse(ctx context.Context) (*config.InUse, error) {
	text, at, err := s.get(ctx, config.InUsePath)
	if text == nil || err != nil {
		return nil, err
	}
	inUse := config.ReadInUse(text)
	if inUse == nil {
		return nil, fmt.Errorf("%s: not a %s", at, config.InUseKind)
	}
	if cluster, err := s.Cluster.Config(s.UserAgent); s.URL == "" && (err != nil || cluster.Host != inUse.Server) {
		return nil, nil
	}
	return inUse, nil
}

// get returns the scheduler's document at a path, or nil if it does not exist.
func (s *Scheduler) get(ctx context.Context, path ...string) (text []byte, at string, err error) {
	where, err := s.find()
	if where == "" || err != nil {
		return nil, "", err
	}
	client, err := s.clientFor(where)
	if err != nil {
		return nil, "", err
	}
	to, err := url.Parse(where)
	if err != nil {
		return nil, "", err
	}
	to.User = nil // keep the password out of errors
	at = to.JoinPath(path...).String()

	response, text, err := Fetch(ctx, client, at, schedulerAnswersWithin)
	switch {
	case err != nil:
		return nil, "", err
	case response.StatusCode == http.StatusNotFound && (len(path) == 1 || strings.HasPrefix(string(text), "pod ")):
		return nil, at, nil
	case response.StatusCode != http.StatusOK:
		line, _, _ := strings.Cut(string(text), "\n")
		said := strings.TrimSuffix(response.Status+": "+strings.TrimSpace(line), ": ")
		return nil, "", fmt.Errorf("%s: %s", at, said)
	}
	return text, at, nil
}

// longest limits the bytes read from an address. A report or a decision is a few kilobytes.
const longest = 16 << 20

// Fetch reads the document at an address.
func Fetch(ctx context.Context, client *http.Client, at string, within time.Duration) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	return response, text, err
}

// clientFor returns a client for an address. The client sends the kubeconfig's credentials only to
// a scheduler with a certificate signed by the cluster's CA, and does not follow redirects.
func (s *Scheduler) clientFor(where string) (client *http.Client, err error) {
	to, err := parseURL(where)
	if err != nil {
		return nil, err
	}

	client = &http.Client{}
	if to.Scheme == "https" {
		config, err := s.Cluster.Config(s.UserAgent)
		if err != nil {
			return nil, err
		}
		if config.Insecure {
			return nil, errors.New("the kubeconfig does not verify servers (insecure-skip-tls-verify), so no " +
				"credentials are sent to " + where)
		}
		if client, err = rest.HTTPClientFor(config); err != nil {
			return nil, err
		}
	}

	own := *client // client may be [http.DefaultClient]
	if password, ok := to.User.Password(); ok {
		own.Transport = withPassword{cmp.Or[http.RoundTripper](own.Transport, http.DefaultTransport), password}
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own, nil
}

// withPassword sends the password published with a scheduler's address.
type withPassword struct {
	http.RoundTripper
	password string
}

func (t withPassword) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth("berth", t.password)
	return t.RoundTripper.RoundTrip(r)
}

// parseURL parses an address of --scheduler-url.
func parseURL(where string) (*url.URL, error) {
	to, err := url.Parse(where)
	if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, usage.Errorf("--scheduler-url %q: must begin with http:// or https://, and name a host", where)
	}
	return to, nil
}
