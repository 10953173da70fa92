// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	components "github.com/berth-k8s/berth/integrations/deploy"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// name is the name of the Service.
const name = "berth-expander.berth-system.svc"

// parse returns the options of a command line.
func parse(t *testing.T, args ...string) *options {
	t.Helper()
	flags, o := newFlags()
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestTheManifestsFlags verifies that the program accepts the arguments of its manifest.
func TestTheManifestsFlags(t *testing.T) {
	args, err := components.Arguments("expander")
	if err != nil {
		t.Fatal(err)
	}
	flags, o := newFlags()
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || flags.NFlag() != len(args) {
		t.Errorf("%q are %d flags: %v", args, flags.NFlag(), err)
	}
	if o.cert == "" || o.key == "" || o.berth.Insecure || !strings.HasPrefix(o.berth.TokenFile, "/var/run/secrets/kubernetes.io/serviceaccount/") {
		t.Errorf("the options are %+v, want TLS, and the token of the pod", o)
	}
}

// write writes a new self-signed certificate with its key, and returns the certificate.
func write(t *testing.T, folder string) []byte {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate
}

// autoscaler returns a client that speaks gRPC over TLS with the server at the end of dial, as the
// autoscaler does with --grpc-expander-cert.
func autoscaler(t *testing.T, ca []byte, dial func(context.Context) (net.Conn, error)) grpcplugin.ExpanderClient {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("no CA")
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return grpcplugin.NewExpanderClient(&http.Client{Transport: transport}, "https://"+name+":8425", connect.WithGRPC())
}

// request returns a scale-up with two options.
func request(t *testing.T) *grpcplugin.BestOptionsRequest {
	t.Helper()
	encode := func(object interface{ Marshal() ([]byte, error) }) []byte {
		text, err := object.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	r := &grpcplugin.BestOptionsRequest{NodeBytesMap: map[string][]byte{}}
	pod := encode(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}})
	for _, group := range []string{"small", "large"} {
		r.NodeBytesMap[group] = encode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": group}}})
		r.Options = append(r.Options, &grpcplugin.Option{NodeGroupId: group, NodeCount: 1, PodBytes: [][]byte{pod}})
	}
	return r
}

// queries is a query service with room on the nodes of the group large.
type queries struct {
	berthv1alpha1.UnimplementedQueryServiceHandler
}

func (queries) Fits(_ context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	if strings.Contains(r.GetManifest(), `"pool":"large"`) {
		return &berthv1alpha1.FitsResponse{Placed: 1, Wanted: 1, Fits: true}, nil
	}
	return &berthv1alpha1.FitsResponse{Wanted: 1}, nil
}

// TestTheAutoscalerAsksOverTLS runs the program between an autoscaler and a query service, with the
// files that the manifest mounts.
func TestTheAutoscalerAsksOverTLS(t *testing.T) {
	_, handler := berthv1alpha1.NewQueryServiceHandler(queries{})
	berth := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer berth.Close()
	folder := t.TempDir()
	certificate := write(t, folder)
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: berth.Certificate().Raw})
	s, err := newServer(parse(t, "--address=127.0.0.1:0", "--health-address=127.0.0.1:0", "--berth-url="+berth.URL,
		"--berth-ca-file="+file("ca.crt", string(ca)), "--berth-token-file="+file("token", "secret\n"),
		"--tls-cert-file="+filepath.Join(folder, "tls.crt"), "--tls-private-key-file="+filepath.Join(folder, "tls.key"),
		"--prices="+file("prices.yaml", "nodeGroups: {small: 1, large: 2}")))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.serve(ctx) }()
	dial := func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.answers.Addr().String())
	}
	answer, err := autoscaler(t, certificate, dial).BestOptions(t.Context(), request(t))
	if err != nil || len(answer.GetOptions()) != 1 || answer.GetOptions()[0].GetNodeGroupId() != "large" {
		t.Errorf("the autoscaler gets %v, want large (%v)", answer.GetOptions(), err)
	}
	if _, err := autoscaler(t, ca, dial).BestOptions(t.Context(), request(t)); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with another CA: %v, want a certificate error", err)
	}
	for _, page := range []string{"/healthz", "/readyz", "/metrics"} {
		probe, err := http.Get("http://" + s.status.Addr().String() + page)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(probe.Body)
		_ = probe.Body.Close()
		if err != nil || probe.StatusCode != http.StatusOK {
			t.Errorf("%s is %s (%v)", page, probe.Status, err)
		}
		if want := `berth_expander_scale_ups_total{result="chosen"} 1`; page == "/metrics" && !strings.Contains(string(text), want) {
			t.Errorf("the metrics are without %s:\n%s", want, text)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// pipes is a listener in memory.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.connections:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.connections <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// TestARotatedCertificateIsServed replaces the files, as the kubelet does with those of a Secret.
// New connections get the new certificate after a minute, on a fake clock.
func TestARotatedCertificateIsServed(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		first := write(t, folder)
		o := parse(t, "--tls-cert-file="+filepath.Join(folder, "tls.crt"), "--tls-private-key-file="+filepath.Join(folder, "tls.key"))
		_, service := grpcplugin.NewExpanderHandler(echo{})
		plain := &pipes{connections: make(chan net.Conn), closed: make(chan struct{})}
		answers, err := o.encrypt(plain)
		if err != nil {
			t.Fatal(err)
		}
		status := &pipes{closed: make(chan struct{})}
		s := &server{answers: answers, status: status, service: service, health: http.NotFoundHandler()}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.serve(ctx) }()
		ask := func(ca []byte) error {
			answer, err := autoscaler(t, ca, plain.dial).BestOptions(t.Context(), request(t))
			if err == nil && len(answer.GetOptions()) != 2 {
				return errors.New("not all options are returned")
			}
			return err
		}
		if err := ask(first); err != nil {
			t.Errorf("with the first certificate: %v", err)
		}
		second := write(t, folder)
		time.Sleep(61 * time.Second)
		if err := ask(second); err != nil {
			t.Errorf("with the second certificate: %v", err)
		}
		if err := ask(first); err == nil {
			t.Error("the first certificate is still served")
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

// echo returns all options.
type echo struct{}

func (echo) BestOptions(_ context.Context, r *grpcplugin.BestOptionsRequest) (*grpcplugin.BestOptionsResponse, error) {
	return &grpcplugin.BestOptionsResponse{Options: r.GetOptions()}, nil
}

// TestAddressesOfTheNetworkNeedACertificate verifies the errors at the start.
func TestAddressesOfTheNetworkNeedACertificate(t *testing.T) {
	for want, args := range map[string][]string{
		"requires --tls-cert-file": {"--address=:0"},
		"must be given together":   {"--address=:0", "--tls-cert-file=tls.crt"},
		"no such file":             {"--address=:0", "--tls-cert-file=missing.crt", "--tls-private-key-file=missing.key"},
		"--parallel 0":             {"--address=127.0.0.1:0", "--parallel=0"},
	} {
		if _, err := newServer(parse(t, args...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
