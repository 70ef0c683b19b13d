(* Reads one question per line and prints one answer per line. Numbers are written
   in binary, rationals as (numerator denominator), lists in parentheses. *)

open Extracted

type tree = Number of z | Tree of tree list

let rec positive_of text last =
  if last = 0 then XH
  else
    let rest = positive_of text (last - 1) in
    if text.[last] = '1' then XI rest else XO rest

let number_of text =
  if text = "0" then Z0
  else if text.[0] = '-' then
    let digits = String.sub text 1 (String.length text - 1) in
    Zneg (positive_of digits (String.length digits - 1))
  else Zpos (positive_of text (String.length text - 1))

let rec digits = function XH -> "1" | XO p -> digits p ^ "0" | XI p -> digits p ^ "1"
let text_of = function Z0 -> "0" | Zpos p -> digits p | Zneg p -> "-" ^ digits p

let rec trees = function
  | [] -> ([], [])
  | ")" :: rest -> ([], rest)
  | "(" :: rest ->
      let inner, rest = trees rest in
      let others, rest = trees rest in
      (Tree inner :: others, rest)
  | word :: rest ->
      let others, rest = trees rest in
      (Number (number_of word) :: others, rest)

let rec int_of_positive = function
  | XH -> 1 | XO p -> 2 * int_of_positive p | XI p -> (2 * int_of_positive p) + 1
let int_of = function Z0 -> 0 | Zpos p -> int_of_positive p | Zneg p -> - int_of_positive p
let rec natural n = if n = 0 then O else S (natural (n - 1))
let rec int_of_natural = function O -> 0 | S n -> 1 + int_of_natural n
let rec z_of_int n =
  if n = 0 then Z0 else
    let rec go n = if n = 1 then XH else if n land 1 = 1 then XI (go (n / 2)) else XO (go (n / 2)) in
    Zpos (go n)

let number = function Number n -> n | Tree _ -> failwith "a number was expected"
let items = function Tree l -> l | Number _ -> failwith "a list was expected"
let numbers t = List.map number (items t)
let nat t = natural (int_of (number t))
let nats t = List.map nat (items t)
let flag t = number t <> Z0
let rational t = match numbers t with
  | [ n; Zpos d ] -> { qnum = n; qden = d }
  | _ -> failwith "a rational was expected"
let pair t = match items t with [ p; q ] -> (rational p, rational q) | _ -> failwith "a pair"
let pairs t = List.map pair (items t)
let row t = match items t with [ cells; total ] -> (numbers cells, number total) | _ -> failwith "a row"
let two t = match numbers t with [ x; y ] -> (x, y) | _ -> failwith "two numbers"

let listed f l = "( " ^ String.concat " " (List.map f l) ^ " )"
let show_nat n = text_of (z_of_int (int_of_natural n))
let show_rational { qnum; qden } = "( " ^ text_of qnum ^ " " ^ digits qden ^ " )"
let show_pairs = listed (fun (p, q) -> "( " ^ show_rational p ^ " " ^ show_rational q ^ " )")

let show_table =
  listed (fun (cells, total) -> "( " ^ listed text_of cells ^ " " ^ text_of total ^ " )")

let answer name arguments =
  match (name, arguments) with
  | "scores", [ steps; tables; weights; table ] ->
      listed text_of (scores (number steps) (nat tables) (numbers weights) (List.map row (items table)))
  | "insert", [ table; cls; places; d ] ->
      show_table (insert_record (List.map row (items table)) (nat cls) (nats places) (number d))
  | "noisy", [ table; noise ] ->
      show_table (noisy (List.map row (items table)) (List.map row (items noise)))
  | "moves", [ steps; weights; sizes ] -> text_of (moves (number steps) (numbers weights) (nats sizes))
  | "decide", [ move; scores ] ->
      let scores = numbers scores in
      let found = match radius (number move) scores with None -> "( )" | Some r -> "( " ^ text_of r ^ " )" in
      "( " ^ show_nat (winner scores) ^ " " ^ found ^ " )"
  | "vectors_kept", [ trim; vectors ] ->
      listed (listed text_of) (vectors_kept (nat trim) (List.map numbers (items vectors)))
  | "vectors_margin", [ trim; tau; vectors ] ->
      show_nat (vectors_margin (nat trim) (number tau) (List.map numbers (items vectors)))
  | "whole_kept", [ trim; values ] ->
      listed (fun (x, i) -> "( " ^ text_of x ^ " " ^ text_of i ^ " )")
        (whole_kept (nat trim) (List.map two (items values)))
  | "whole_margin", [ trim; tau; values ] ->
      show_nat (whole_margin (nat trim) (rational tau) (List.map two (items values)))
  | "quantile", [ low; a; b; values ] ->
      text_of (quantile (number low) (number a) (number b) (numbers values))
  | "quantile_margin", [ low; high; a; b; tau; cap; values ] ->
      text_of (quantile_margin (number low) (number high) (number a) (number b) (number tau)
                 (number cap) (numbers values))
  | "interquartile_range", [ low; values ] ->
      text_of (interquartile_range (number low) (numbers values))
  | "distances", [ a; b; values; places ] ->
      listed (fun v -> text_of (distance (number a) (number b) (numbers values) v)) (numbers places)
  | "spread", [ a; b ] -> text_of (spread (number a) (number b))
  | "tail", [ q; j ] -> show_rational (tail (rational q) (number j))
  | "threshold", [ q; failure; fuel ] ->
      text_of (threshold (rational q) (rational failure) (nat fuel) Z0)
  | "profile", [ p; a ] -> show_rational (profile (pairs p) (rational a))
  | "removing", [ rate; p; a ] ->
      show_rational (removing (rational rate) (profile (pairs p)) (rational a))
  | "adding", [ rate; p; a ] ->
      show_rational (adding (rational rate) (profile (swapped (pairs p))) (rational a))
  | "branch_pair", [ q; b; d; d'; fallback; robust ] ->
      show_pairs (branch_pair (rational q) (number b) (number d) (number d') (flag fallback) (flag robust))
  | "case_one", [ q; b; fallback; accident ] ->
      show_pairs (case_one (rational q) (number b) (flag fallback) (flag accident))
  | "response", [ q ] -> show_pairs (response (rational q))
  | "product", [ p; k ] -> show_pairs (product (pairs p) (pairs k))
  | "bounded_range", [ s; t ] -> show_rational (bounded_range (rational s) (rational t))
  | "geometric", [ a; k ] -> show_rational (geometric (rational a) (nat k))
  | "admitted", [ prices; budget ] ->
      if admitted (List.map rational (items prices)) (rational budget) then "1" else "0"
  | "rho", [ sigma; changes ] -> show_rational (rho (rational sigma) (numbers changes))
  | "delta", [ order; d; a ] -> show_rational (delta (nat order) (rational d) (rational a))
  | _ -> failwith ("unknown question: " ^ name)

let () =
  try
    while true do
      match List.filter (( <> ) "") (String.split_on_char ' ' (input_line stdin)) with
      | name :: words -> print_endline (answer name (fst (trees words)))
      | [] -> ()
    done
  with End_of_file -> ()
