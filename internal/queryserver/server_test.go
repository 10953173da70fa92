// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// permissions answers reviews: the token is the user's name. admin may list everything, and the
// user shop may list the pods of the namespace shop.
func permissions() *fake.Clientset {
	c := fake.NewClientset()
	c.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch review := action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(type) {
		case *authenticationv1.TokenReview:
			review.Status.Authenticated = review.Spec.Token != "bad"
			review.Status.User = authenticationv1.UserInfo{Username: review.Spec.Token}
			return true, review, nil
		case *authorizationv1.SubjectAccessReview:
			to := review.Spec.ResourceAttributes
			review.Status.Allowed = review.Spec.User == "admin" ||
				review.Spec.User == "shop" && to != nil && to.Verb == "list" && to.Resource == "pods" && to.Namespace == "shop"
			return true, review, nil
		}
		return false, nil, nil
	})
	return c
}

func object(kind, namespace, name string, spec, status map[string]any) apitest.Object {
	return apitest.Object{"apiVersion": "v1", "kind": kind, "spec": spec, "status": status,
		"metadata": map[string]any{"namespace": namespace, "name": name, "uid": namespace + name, "labels": map[string]any{"app": name, "kubernetes.io/hostname": name}}}
}

func setNode(api *apitest.Server, name string) {
	api.Set("nodes", object("Node", "", name, map[string]any{}, map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "8Gi", "pods": "10"},
		"conditions": []map[string]any{{"type": "Ready", "status": "True"}}}))
}

func setPod(api *apitest.Server, namespace, name, on, cpu string) {
	api.Set("pods", object("Pod", namespace, name, map[string]any{"nodeName": on, "schedulerName": "default-scheduler",
		"containers": []map[string]any{{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": cpu}}}}}, map[string]any{}))
}

// running starts a server of a cluster with the nodes a and b of 4 CPUs: pod shop/web uses 3 of a,
// pod bank/vault uses 2 of b, and pod shop/large is pending.
type running struct {
	*Server
	api *apitest.Server
	url string
}

func start(t testing.TB, change func(*Options)) *running {
	t.Helper()
	api := apitest.New(t)
	for _, namespace := range []string{"shop", "bank"} {
		api.Set("namespaces", object("Namespace", "", namespace, map[string]any{}, map[string]any{}))
	}
	setNode(api, "a")
	setNode(api, "b")
	setPod(api, "shop", "web", "a", "3")
	setPod(api, "bank", "vault", "b", "2")
	setPod(api, "shop", "large", "", "6")

	// The default port is in use, so the server takes a free one.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	o := Defaults()
	o.SecurePort = taken.Addr().(*net.TCPAddr).Port
	o.Parsed(pflag.NewFlagSet("", pflag.ContinueOnError))
	o.Running = func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		return config.RunningOf(nil, leases, nil, at)
	}
	o.Parse = func(args []string, _ string) ([]whatif.Step, error) {
		return []whatif.Step{{Words: strings.Join(args, " "), Operation: &simulate.Operation{Cordon: &simulate.Nodes{Node: args[1]}}}}, nil
	}
	if change != nil {
		change(&o)
	}
	s, err := Listen(api.Config, o)
	if err != nil {
		t.Fatal(err)
	}
	s.reviews = permissions()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	r := &running{s, api, s.URLs()[0]}
	r.until(t, func() bool { return s.unready(nil) == nil })
	return r
}

func (r *running) until(t testing.TB, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 30 s")
		}
	}
}

// as returns a client of a user.
func (r *running) as(t testing.TB, user string, options ...connect.ClientOption) berthv1alpha1.QueryServiceClient {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return berthv1alpha1.NewQueryServiceClient(&http.Client{Transport: authorized{user, transport}}, r.url, options...)
}

type authorized struct {
	token string
	http.RoundTripper
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return a.RoundTripper.RoundTrip(r)
}

func podOf(cpu, more string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: new, labels: {app: new}}, spec: {%s containers: [{name: c, image: i, resources: {requests: {cpu: %q}}}]}}", more, cpu)
}

func TestFitsOverEveryProtocol(t *testing.T) {
	r := start(t, nil)
	for name, options := range map[string][]connect.ClientOption{
		"gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()}, "JSON": {connect.WithProtoJSON()}, "protobuf": nil,
	} {
		answer, err := r.as(t, "admin", options...).Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", ""), Max: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if answer.Placed != 3 || answer.Nodes["a"] != 1 || answer.Nodes["b"] != 2 || answer.Reasons["Insufficient cpu"] != 2 || answer.Basis.Partial {
			t.Errorf("%s: %v", name, answer)
		}
	}
}

// TestFitsWithAdditionalNodes asks about pods of two namespaces, of which one never fits, with
// nodes that run the pods of a DaemonSet.
func TestFitsWithAdditionalNodes(t *testing.T) {
	r := start(t, nil)
	agent := object("DaemonSet", "shop", "agent", map[string]any{"template": map[string]any{"spec": map[string]any{
		"containers": []map[string]any{{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": "2"}}}},
	}}}, map[string]any{})
	agent["apiVersion"] = "apps/v1"
	r.api.Set("daemonsets", agent)
	manifest := strings.Replace(podOf("100", ""), "name: new", "name: huge, namespace: bank", 1) + "\n---\n" + podOf("2", "") + "\n---\n" +
		"{apiVersion: v1, kind: Node, metadata: {name: m}, status: {allocatable: {cpu: 4, memory: 8Gi, pods: 10}}}"
	ask := func(user string, nodes int32) (*berthv1alpha1.FitsResponse, error) {
		return r.as(t, user).Fits(t.Context(), &berthv1alpha1.FitsRequest{
			Namespace: "shop", Manifest: manifest, Count: 4, NodeCount: nodes, Every: true,
		})
	}
	r.until(t, func() bool { // the DaemonSet has been read
		answer, err := ask("admin", 2)
		return err == nil && answer.Placed == 3 && answer.Wanted == 8 && answer.Nodes["m-fits-1"] == 1 && !answer.Fits &&
			answer.Reasons["Insufficient cpu"] == 4
	})
	if answer, err := ask("admin", 3); err != nil || answer.Placed != 4 {
		t.Errorf("with one more node: %v, %v", answer, err)
	}
	if answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("3", "")}); err != nil || answer.Placed != 0 {
		t.Errorf("the added nodes remain: %v, %v", answer, err)
	}
	if _, err := ask("shop", 1); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a caller with the permissions of a namespace adds nodes: %v", err)
	}
}

// TestJSONNeedsNoLibrary sends the request that the documentation shows for curl.
func TestJSONNeedsNoLibrary(t *testing.T) {
	r := start(t, nil)
	body, _ := json.Marshal(map[string]any{"namespace": "shop", "manifest": podOf("500m", ""), "count": 4})
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/berth.v1alpha1.QueryService/Fits", strings.NewReader(string(body)))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer admin")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK || !strings.Contains(string(text), `"fits":true`) || !strings.Contains(string(text), `"placed":4`) {
		t.Errorf("%s %s", response.Status, text)
	}
}

func TestAnswersFollowTheCluster(t *testing.T) {
	r := start(t, nil)
	fits := func() int32 {
		answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Like: "pod/web", Max: true})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Placed
	}
	if n := fits(); n != 0 {
		t.Fatalf("%d pods of 3 CPUs fit", n)
	}
	setNode(r.api, "c")
	r.until(t, func() bool { return fits() == 1 })
	setPod(r.api, "bank", "other", "c", "2")
	r.until(t, func() bool { return fits() == 0 })
}

func TestQuotasMakeAnAnswerPartial(t *testing.T) {
	r := start(t, nil)
	r.api.Set("resourcequotas", object("ResourceQuota", "shop", "few", map[string]any{"hard": map[string]any{"pods": "1"}}, map[string]any{}))
	r.until(t, func() bool {
		answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", "")})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Basis.Partial && strings.Contains(answer.Basis.Limits[0], "ResourceQuotas")
	})
}

func TestExplainAndForecast(t *testing.T) {
	r := start(t, nil)
	e, err := r.as(t, "admin").Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: "shop", Name: "large"})
	if err != nil || e.State != "Pending" || e.Nodes != 2 || len(e.Rejections) != 1 || e.Rejections[0].Plugin != "NodeResourcesFit" || e.Document.Fields["summary"] == nil {
		t.Errorf("%v, %v", e, err)
	}
	p, err := r.as(t, "admin").Pending(t.Context(), &berthv1alpha1.PendingRequest{})
	if err != nil || p.Pods != 1 || p.Workloads[0].Name != "pod/large" {
		t.Errorf("%v, %v", p, err)
	}
	w, err := r.as(t, "admin").WhatIf(t.Context(), &berthv1alpha1.WhatIfRequest{Operations: []string{"cordon", "a"}})
	if err != nil || !strings.Contains(w.Text, "cordon a") || len(w.ChangedNodes) != 1 || w.ChangedNodes[0].Cpu.GetRequested() != 3000 || !w.ChangedNodes[0].Cordoned {
		t.Errorf("%v, %v", w, err)
	}
	_, err = r.as(t, "admin").Capacity(t.Context(), &berthv1alpha1.CapacityRequest{AsOf: timestamppb.Now()})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "recording") {
		t.Errorf("another time than now: %v", err)
	}
	_, err = r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Like: "pod/web", AsOf: timestamppb.Now()})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "recording") {
		t.Errorf("another time than now: %v", err)
	}
	c, err := r.as(t, "admin").Capacity(t.Context(), &berthv1alpha1.CapacityRequest{})
	if err != nil || len(c.Document.Fields["groups"].GetListValue().GetValues()) != 2 {
		t.Errorf("%v, %v", c, err)
	}
	_, err = r.as(t, "admin").Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: "shop", Name: "vault"})
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "bank") {
		t.Errorf("a pod of another namespace: %v", err)
	}
}

// TestCallersLearnOnlyWhatTheyMayList asks every question as callers with fewer permissions.
func TestCallersLearnOnlyWhatTheyMayList(t *testing.T) {
	r := start(t, nil)
	questions := func(c berthv1alpha1.QueryServiceClient, namespace string) map[string]error {
		errs := map[string]error{}
		_, errs["fits"] = c.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: namespace, Manifest: podOf("1", "")})
		_, errs["explain"] = c.Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: namespace, Name: "web"})
		_, errs["explain a group"] = c.Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: namespace, Name: "web", Group: true})
		_, errs["pending"] = c.Pending(t.Context(), &berthv1alpha1.PendingRequest{Namespace: namespace})
		_, errs["pending everywhere"] = c.Pending(t.Context(), &berthv1alpha1.PendingRequest{})
		_, errs["what-if"] = c.WhatIf(t.Context(), &berthv1alpha1.WhatIfRequest{Operations: []string{"cordon", "a"}})
		_, errs["capacity"] = c.Capacity(t.Context(), &berthv1alpha1.CapacityRequest{})
		return errs
	}
	for user, code := range map[string]connect.Code{"nobody": connect.CodePermissionDenied, "bad": connect.CodeUnauthenticated, "": connect.CodeUnauthenticated} {
		for name, err := range questions(r.as(t, user), "shop") {
			if connect.CodeOf(err) != code || strings.Contains(err.Error(), "web") {
				t.Errorf("%q asks %s: %v", user, name, err)
			}
		}
	}
	for name, err := range questions(r.as(t, "shop"), "bank") {
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("shop asks %s of bank: %v", name, err)
		}
	}

	shop := r.as(t, "shop")
	fits, err := shop.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", ""), Max: true})
	if err != nil || fits.Placed != 3 || len(fits.Nodes) > 0 || !fits.Basis.Partial {
		t.Errorf("%v, %v", fits, err)
	}
	for _, name := range []string{"large", "web"} {
		e, err := shop.Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: "shop", Name: name, Node: "b"})
		if err != nil || e.Document != nil || e.Summary != "" || !e.Basis.Partial || strings.Contains(e.String(), "vault") {
			t.Errorf("%v, %v", e, err)
		}
	}
	if p, err := shop.Pending(t.Context(), &berthv1alpha1.PendingRequest{Namespace: "shop"}); err != nil || p.Pods != 1 || p.Document != nil || p.Workloads[0].Suggestion != "" {
		t.Errorf("%v, %v", p, err)
	}
	for name, ask := range map[string]func() error{
		"a pod of a similar name": func() error {
			_, err := shop.Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: "shop", Name: "vault"})
			return err
		},
		"a pod group": func() error {
			_, err := shop.Explain(t.Context(), &berthv1alpha1.ExplainRequest{Namespace: "shop", Name: "web", Group: true})
			if connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("a pod group: %v", err)
			}
			return err
		},
		"affinity to pods of another namespace": func() error {
			near := `affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, namespaces: [bank], labelSelector: {matchLabels: {app: vault}}}]}},`
			_, err := shop.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", near)})
			return err
		},
		"a pod in another namespace": func() error {
			_, err := shop.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: strings.Replace(podOf("1", ""), "name: new", "name: new, namespace: bank", 1)})
			return err
		},
		"a model in another namespace": func() error {
			_, err := shop.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Like: "pod/vault"})
			return err
		},
	} {
		if err := ask(); err == nil || strings.Contains(err.Error(), "there is one") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneCallerCannotDelayOthers lets a caller ask the most expensive questions without pause.
func TestOneCallerCannotDelayOthers(t *testing.T) {
	r := start(t, func(o *Options) { o.CallerRate = 1000 })
	busy := r.as(t, "shop")
	code := connect.Code(0)
	r.until(t, func() bool {
		_, err := busy.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1m", ""), Count: 100_000})
		code = connect.CodeOf(err)
		return err != nil
	})
	if code != connect.CodeResourceExhausted {
		t.Errorf("the work of a caller without pause: %v", code)
	}
	began := time.Now()
	if _, err := busy.Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1m", ""), Count: 100_000}); connect.CodeOf(err) != connect.CodeResourceExhausted || time.Since(began) < refusalDelay {
		t.Errorf("a refusal after %v: %v", time.Since(began), err)
	}
	if _, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", "")}); err != nil {
		t.Errorf("another caller: %v", err)
	}
}

// TestAQuestionEndsInTime sends a question when no State can be read in time.
func TestAQuestionEndsInTime(t *testing.T) {
	_, handler := Handler(&Answers{Read: func(ctx context.Context, _ Question, _ func(*State) error) error {
		<-ctx.Done()
		return ctx.Err()
	}}, time.Millisecond)
	server := httptest.NewServer(handler)
	defer server.Close()
	_, err := berthv1alpha1.NewQueryServiceClient(server.Client(), server.URL).Pending(t.Context(), &berthv1alpha1.PendingRequest{})
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded || !strings.Contains(err.Error(), "within 1ms: ask for less") {
		t.Error(err)
	}
}

func TestADeadlineGivesAPartialAnswer(t *testing.T) {
	r := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var answer *berthv1alpha1.FitsResponse
	d, err := readDemand(&berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1", ""), Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	if failed := r.follower.do(t.Context(), func(l *lane) { answer, err = l.fits(ctx, d, "shop", (&view{whole: true}).checkTerms) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	if !answer.Basis.Partial || answer.Placed != 1 || answer.Wanted != 3 {
		t.Errorf("%v", answer)
	}
}

// TestAnExpensiveQuestionGetsAllTime asks for as many pods as fit, which takes longer than short
// questions may.
func TestAnExpensiveQuestionGetsAllTime(t *testing.T) {
	const pods = 30_000
	r := start(t, nil)
	room := map[string]any{"cpu": "1k", "memory": "1Ti", "pods": pods}
	r.api.Set("nodes", object("Node", "", "large", nil, map[string]any{"allocatable": room, "capacity": room}))
	r.until(t, func() bool {
		answer, err := r.as(t, "admin").Fits(t.Context(), &berthv1alpha1.FitsRequest{Namespace: "shop", Manifest: podOf("1m", ""), Max: true})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Placed > pods && !answer.Basis.Partial // on a busy machine, watches are late as well
	})
}
