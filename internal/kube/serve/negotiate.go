// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// zpagesGroup is upstream's API group of /flagz and /statusz.
const zpagesGroup = "config.k8s.io"

// representation is the requested form of a page: text, or an object of that version in that
// format.
type representation struct {
	version string // "" is text
	format  runtime.SerializerInfo
	pretty  bool
}

// listFormats returns text, which has no serializer, and the formats of objects. CBOR has the same
// gate as in every component of Kubernetes.
func listFormats() []runtime.SerializerInfo {
	text := func(runtime.ObjectCreater, runtime.ObjectTyper) runtime.SerializerInfo {
		return runtime.SerializerInfo{MediaType: "text/plain", MediaTypeType: "text", MediaTypeSubType: "plain"}
	}
	more := []serializer.CodecFactoryOptionsMutator{serializer.WithSerializer(text)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		more = append(more, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	all := serializer.NewCodecFactory(runtime.NewScheme(), more...).SupportedMediaTypes()
	return slices.DeleteFunc(slices.Clone(all), func(s runtime.SerializerInfo) bool { return s.MediaType == runtime.ContentTypeProtobuf })
}

// negotiateFormat finds the first available representation accepted by the header, in the header's
// order of preference. Like upstream, a page is an object only if its group, version and kind are
// named, and text only without them. ok is false if no representation is acceptable.
//
// For example, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz" is that object in JSON, an
// empty header or "*/*" is text, and a mere "application/json" is not acceptable.
func (p *zpage) negotiateFormat(accept string) (representation, bool) {
	if strings.TrimSpace(accept) == "" {
		return representation{}, true
	}
	available := listFormats()
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, format := range available {
			exactly := clause.Type == format.MediaTypeType && clause.SubType == format.MediaTypeSubType
			if !exactly && (clause.SubType != "*" || clause.Type != "*" && clause.Type != format.MediaTypeType) {
				continue
			}
			if wanted, ok := p.acceptParams(clause.Params, format); ok {
				return wanted, true
			}
		}
	}
	return representation{}, false
}

// acceptParams reports whether the parameters of a clause fit the format, and returns the requested
// representation.
func (p *zpage) acceptParams(params map[string]string, format runtime.SerializerInfo) (representation, bool) {
	// Upstream refuses both for these pages.
	if params["stream"] != "" || params["sv"] != "" {
		return representation{}, false
	}
	// All three or none: a part of a group, version and kind names no object.
	named := false
	for _, key := range []string{"g", "v", "as"} {
		_, given := params[key]
		named = named || given
	}
	if format.MediaTypeType == "text" {
		return representation{}, !named
	}
	version := params["v"]
	known := params["g"] == zpagesGroup && params["as"] == p.kind && p.objects[version] != nil
	return representation{version: version, format: format, pretty: params["pretty"] == "1"}, known
}

// newEncoder returns the format's encoder, with line breaks for people: like upstream, it examines
// the user agent.
func (a representation) newEncoder(r *http.Request) runtime.Encoder {
	pretty, err := strconv.ParseBool(r.URL.Query().Get("pretty"))
	if err != nil {
		agent := r.UserAgent()
		pretty = strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
	}
	if (pretty || a.pretty) && a.format.PrettySerializer != nil {
		return a.format.PrettySerializer
	}
	return a.format.Serializer
}

// notAcceptable responds like an API server.
func notAcceptable(w http.ResponseWriter) {
	var types []string
	for _, format := range listFormats() {
		types = append(types, format.MediaType)
	}
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(types, ", "),
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotAcceptable)
	encoded, err := json.Marshal(status)
	if err != nil {
		return // strings and a number: cannot happen
	}
	_, _ = w.Write(append(encoded, '\n'))
}
