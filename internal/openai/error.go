// Package openai defines the API's requests, responses and errors.
//
// Decoding is strict where a wrong value would change the answer and lenient
// where clients differ: unknown fields are accepted, a wrong type or a number out
// of range is an Error that names the field and the range. Fields that would
// change the answer's shape and can't be honoured (tools, response_format other
// than text, echo, ...) are refused, never ignored; the fields that would steer
// the transfer, the cache or the identity of a request are dropped and reported.
//
// No message repeats a value that the client sent: error bodies stay short and
// carry no prompt text.
//
// The package is pure: no clock, no I/O, no goroutine.
package openai

import "fmt"

// The types of an Error, as OpenAI's clients know them.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypePermission     = "permission_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// The codes of an Error that decoding makes.
const (
	CodeInvalidJSON  = "invalid_json"
	CodeInvalidType  = "invalid_type"
	CodeInvalidValue = "invalid_value"
	CodeOutOfRange   = "out_of_range"
	CodeMissing      = "missing_required_parameter"
	CodeUnsupported  = "unsupported_parameter"
)

// Error is the error object of the API. Param and Code are null when empty.
type Error struct {
	Message string
	Type    string
	Param   string
	Code    string
}

// Error is the message alone.
func (e *Error) Error() string { return e.Message }

// ErrorBody is the JSON body {"error": {...}} of an Error, also the data of an
// error event in a stream.
type ErrorBody struct {
	Error ErrorObject `json:"error"`
}

// ErrorObject is the wire form of Error.
type ErrorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// Body is the wire form of the error.
func (e *Error) Body() ErrorBody {
	return ErrorBody{ErrorObject{Message: e.Message, Type: e.Type, Param: optional(e.Param), Code: optional(e.Code)}}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func invalid(code, param, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Type: TypeInvalidRequest, Param: param, Code: code}
}
