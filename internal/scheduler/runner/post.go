// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/berth-k8s/berth/internal/pacing"
)

// poster sends the two requests needed for every pod, which create its binding and the event about
// the binding. These requests cause most of the cost of a scheduler, and client-go would double it:
// client-go assembles each URL from parts and parses it again for metrics, decodes responses that
// are not used, and copies headers for possible redirects. Rate limits, Retry-After, redirects and
// metrics are handled like in client-go.
type poster struct {
	client     *http.Client
	transport  http.RoundTripper       // the client's transport
	server     *url.URL                // URL of the server, for metrics
	namespaces *url.URL                // base URL of all requests; not modified
	limit      flowcontrol.RateLimiter // nil: none
	serializer runtime.Serializer
	header     http.Header // header of all requests; not modified
}

const (
	// mostTries is the maximum number of attempts for a request if all responses have Retry-After.
	mostTries = 10
	// longestAnswer is the maximum number of bytes read from an error response.
	longestAnswer = 64 << 10
)

// newPoster returns a poster that uses the connections of one client (through) and the rate limit
// of another (limited). If agent is empty, the first client's user agent is used. The clients
// must be real ones: newPoster returns an error for a fake clientset.
func newPoster(through, limited kubernetes.Interface, contentType, agent string) (*poster, error) {
	contentType = cmp.Or(contentType, runtime.ContentTypeProtobuf)
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok {
		return nil, fmt.Errorf("content type %s: there are %s and %s", contentType, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON)
	}

	client, ok := through.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok {
		return nil, fmt.Errorf("a client that sends requests is needed, not %T", through)
	}

	server := client.Post().AbsPath("/").URL()
	header := http.Header{"Content-Type": {contentType}, "Accept": {contentType + ", " + runtime.ContentTypeJSON}}
	if agent != "" {
		header.Set("User-Agent", agent)
	}

	sends := cmp.Or(client.Client, http.DefaultClient)
	transport := cmp.Or(sends.Transport, http.DefaultTransport)

	return &poster{
		client: sends, transport: transport, server: server, namespaces: server.JoinPath("api/v1/namespaces"),
		limit: limited.CoreV1().RESTClient().GetRateLimiter(), serializer: info.Serializer, header: header,
	}, nil
}

// postBinding binds a pod. It returns the same errors as client-go, so that isAnswered and the
// reasons in metrics apply.
func (p *poster) postBinding(ctx context.Context, b *v1.Binding) error {
	b.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}
	return p.postObject(ctx, b.Namespace, "pods/"+b.Name+"/binding", b)
}

// postEvent writes an event.
func (p *poster) postEvent(ctx context.Context, e *v1.Event) error {
	e.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	return p.postObject(ctx, e.Namespace, "events", e)
}

// postObject encodes the object once, and repeats the request while responses have Retry-After, up
// to mostTries times.
func (p *poster) postObject(ctx context.Context, namespace, resource string, object runtime.Object) error {
	var body bytes.Buffer
	if err := p.serializer.Encode(object, &body); err != nil {
		return err
	}

	to := *p.namespaces
	to.Path += "/" + namespace + "/" + resource
	if to.RawPath != "" { // the server's path contains unusual escapes
		to.RawPath += "/" + namespace + "/" + resource
	}

	for try := 1; ; try++ {
		// As in client-go, each attempt counts against the rate limit.
		if p.limit != nil {
			if err := p.limit.Wait(ctx); err != nil {
				return err
			}
		}
		comeBack, err := p.sendRequest(ctx, &to, body.Bytes())
		if comeBack == 0 || try == mostTries || !pacing.Sleep(ctx, comeBack) {
			return err
		}
	}
}

// sendRequest sends one request. If the response requests a retry, comeBack is the time to wait
// before the retry.
func (p *poster) sendRequest(ctx context.Context, to *url.URL, body []byte) (comeBack time.Duration, err error) {
	if p.client.Timeout > 0 {
		within, cancel := context.WithTimeout(ctx, p.client.Timeout)
		defer cancel()
		ctx = within
	}

	began, code := time.Now(), "<error>"
	response, err := p.transport.RoundTrip(p.newRequest(ctx, to, body))
	switch {
	case err != nil:
		err = &url.Error{Op: "Post", URL: to.Redacted(), Err: err} // like http.Client
	case response.StatusCode/100 == 3: // a proxy redirects the request
		response.Body.Close()
		response, err = p.client.Do(p.newRequest(ctx, to, body))
	}

	if err == nil {
		code = strconv.Itoa(response.StatusCode)
		defer response.Body.Close()
	}
	metrics.RequestLatency.Observe(ctx, http.MethodPost, *p.server, time.Since(began))
	metrics.RequestSize.Observe(ctx, http.MethodPost, p.server.Host, float64(len(body)))
	metrics.RequestResult.Increment(ctx, code, http.MethodPost, p.server.Host)
	switch {
	case err != nil:
		return 0, err
	case response.StatusCode < http.StatusMultipleChoices:
		_, _ = io.Copy(io.Discard, response.Body) // read to the end, so that the connection can be reused
		return 0, nil
	}
	return comeBackAfter(response), errorOf(response)
}

// newRequest is like http.NewRequestWithContext, but takes a parsed URL.
func (p *poster) newRequest(ctx context.Context, to *url.URL, body []byte) *http.Request {
	read := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	first, _ := read()
	request := http.Request{
		Method: http.MethodPost, URL: to, Host: to.Host, Header: p.header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: first, GetBody: read, ContentLength: int64(len(body)),
	}
	return request.WithContext(ctx)
}

// comeBackAfter returns the time to wait before a retry; 0 means no retry. Like client-go, it
// considers the header Retry-After only for status 429 and for 5xx. It adds a millisecond, so that
// "Retry-After: 0" differs from no retry.
func comeBackAfter(r *http.Response) time.Duration {
	if r.StatusCode != http.StatusTooManyRequests && r.StatusCode < http.StatusInternalServerError {
		return 0
	}
	seconds, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds)*time.Second + time.Millisecond
}

// errorOf returns the error in a response of the API server, or of a proxy in front of it.
func errorOf(r *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(r.Body, longestAnswer))
	if said, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil); err == nil {
		if status, ok := said.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
			return &apierrors.StatusError{ErrStatus: *status}
		}
	}
	return apierrors.NewGenericServerResponse(r.StatusCode, http.MethodPost, schema.GroupResource{}, "", string(text), 0, true)
}
